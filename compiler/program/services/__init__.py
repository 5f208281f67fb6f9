"""What a program is made of: which launches may begin, random seeds, the adstack heap, trials, errors that come later."""
