"""Everything that imports Ray: clusters, actors, placement groups, the Jobs API.

Type checkers would take a folder named ray for the package.
"""
