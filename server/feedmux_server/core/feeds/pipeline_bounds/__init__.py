"""Bounds what a pipeline makes of an event, and the work for it, before MongoDB gets the pipeline.

Everything that is not listed here is rejected: a new operator of MongoDB is unknown until somebody has thought about
its size. What is listed gets a bound of its output in bytes of BSON:

    weights x parts of the event + constant

- A weight stands on a path of the document (`fullDocument.items`) or of a loop's element (`$$this.price`). References
  to different paths of one object share its bytes, so 40 projected fields weigh 1 together: the weight of an object is
  its own plus that of its heaviest child. An array in the way gives every reference its own index keys and brackets:
  `weights` says how much that adds.
- A scalar is a constant. What builds something weighs the sum of its parts, a choice the maximum of its branches. A
  variable weighs what it was bound to, at every use.
- `$map` multiplies: the weight of its element is the input's, and a constant counts for each element, which has 3 bytes
  at least. What weighs anything outside of the loop is rejected there (elements x event grows with the square), in the
  output as in the work; a comparison costs the smaller of its operands only, and so may look outside. A field that is
  set below a possible array is such a loop too, for MongoDB sets it in every element.
- `$set` and `$project` add fields whose bounds are remembered, so that a later stage which refers to them weighs what
  they were made of. `$replaceRoot` and `$replaceWith` begin a new document, whose weight multiplies what follows.

Work is counted alike, in bytes looked at and 8 for each operator that is evaluated. The limits hold for the document
after each stage, for what an operator throws away (`{$size: {$concatArrays: …}}`), and for the work of all stages.
tests/integration/test_pipeline_bounds.py holds the bounds against a real mongod. What is in the document when the
pipeline begins is an event: some fields are objects or missing (`document`), nothing else is known about it.

    stages       what each stage makes of the document; the entrance, `check_bounds`
    match_query  conditions of `$match`
    expressions  paths, variables, and operators that bind, choose or take constants
    operators    operators whose result depends on the values of their operands alone
    arguments    how operators are written
    literals     constants, regular expressions, JavaScript
    document     the fields of an event, and those that stages have set
    budget       the limits, and what has been used of them
    weights      the arithmetic of bounds
"""
