"""What a run folder keeps of where a run comes from: code, config, inputs, versions, devices; and how to run it again from that."""
