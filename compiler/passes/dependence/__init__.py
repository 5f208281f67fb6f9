"""Which accesses of a kernel can meet, and the data-access rules of reverse mode that follow."""
