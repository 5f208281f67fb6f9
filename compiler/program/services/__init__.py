"""What a program is made of: admission of launches, random seeds, the adstack heap, trials, arrays, late errors."""
