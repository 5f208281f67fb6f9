"""Plans the memory of gradient launches: adstack sizes, checkpoint levels and rows, from the IR and the arguments. Needs no device."""
