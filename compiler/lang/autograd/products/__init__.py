"""Derivatives of functions of launches: Jacobians, products with vectors, products of Hessians."""
