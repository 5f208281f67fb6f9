from qdrun.compiler.ir import nodes
def test_x(): assert nodes.Const(1, None).value == 1
