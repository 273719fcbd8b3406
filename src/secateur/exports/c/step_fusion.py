"""Fusion of steps into one loop: chains of elementwise functions, and the product before them."""

from __future__ import annotations

from dataclasses import dataclass

from secateur.exports.graph import ELEMENTWISE, Atom, Constant, Graph, Node, Value

__all__ = ["FusedSteps", "fuse_steps"]

_PRODUCTS = ("linear", "conv")


@dataclass(frozen=True, eq=False)
class FusedSteps:
    """Steps that are done element by element in one loop.

    Attributes:
        root: The step whose result is stored.
        nodes: Elementwise functions in order, the root last; empty if the root is another step.
        producer: The product with weights whose result they take without storing it.
        leaves: Operands that are read from memory.
    """

    root: Node
    nodes: tuple[Node, ...]
    producer: Node | None
    leaves: tuple[Atom, ...]

    @property
    def elementwise(self) -> bool:
        """Whether the root is an elementwise function."""
        return bool(self.nodes)


def fuse_steps(graph: Graph) -> list[FusedSteps]:
    """Return the steps of a graph in groups, in topological order."""
    makers = {n.output: n for n in graph.nodes if len(n.outputs) == 1}
    users = graph.users()
    results = {a for a in graph.results() if isinstance(a, Value)}

    def joins(node: Node) -> bool:
        """Whether a step's result is read by one elementwise function of the same shape only."""
        readers = users.get(node.output, [])
        return (
            node.output not in results
            and len(readers) == 1
            and readers[0].op in ELEMENTWISE
            and readers[0].output.shape == node.output.shape
        )

    inside = {n for n in graph.nodes if n.op in (*ELEMENTWISE, *_PRODUCTS) and joins(n)}
    groups: list[FusedSteps] = []
    for root in graph.nodes:
        if root in inside:
            continue
        if root.op not in ELEMENTWISE:
            groups.append(FusedSteps(root, (), None, tuple(root.inputs)))
            continue
        nodes, products, leaves = _tree(root, makers, inside)
        producer = None
        if products and all(_fits(leaf, root) for leaf in leaves):
            producer = max(products, key=graph.nodes.index)
        for product in products:
            if product is not producer:
                groups.append(FusedSteps(product, (), None, tuple(product.inputs)))
                leaves = [*leaves, product.output]
        read = [*leaves, *(producer.inputs if producer else ())]
        groups.append(FusedSteps(root, tuple(nodes), producer, tuple(dict.fromkeys(read))))
    return groups


def _tree(
    root: Node, makers: dict[Value, Node], inside: set[Node]
) -> tuple[list[Node], list[Node], list[Atom]]:
    """The elementwise steps under a root, the products they read, and all other operands."""
    nodes: list[Node] = []
    products: list[Node] = []
    leaves: list[Atom] = []

    def visit(node: Node) -> None:
        for atom in node.inputs:
            maker = makers.get(atom) if isinstance(atom, Value) else None
            if maker is None or maker not in inside:
                leaves.append(atom)
            elif maker.op in _PRODUCTS:
                products.append(maker)
            elif maker not in nodes:
                visit(maker)
        nodes.append(node)

    visit(root)
    return nodes, products, list(dict.fromkeys(leaves))


def _fits(leaf: Atom, root: Node) -> bool:
    """Whether an operand can be read at the index of the result."""
    if isinstance(leaf, Constant):
        return leaf.number is not None
    return leaf.shape == root.output.shape
