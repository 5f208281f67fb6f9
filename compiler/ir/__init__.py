"""The intermediate representation: nodes, operations, their meaning, and tools to read it. Imports no other package of the compiler."""
