"""Fields, ndarrays, matrices, structs and the layout tree, as users see them."""
