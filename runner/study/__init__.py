"""What a config asks for: points, trials, the job's class, plans, and the devices that the trials would run on."""
