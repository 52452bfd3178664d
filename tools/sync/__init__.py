"""Makes ``src/oxcart/sync/`` from the asynchronous source: ``make sync`` writes it, ``make lint`` checks it.

Every class of `FACES` (in ``faces.py``) gets a twin that calls it through the portal. The portal,
``sync/_portal.py``, is the one file that is written by hand. The twin has the same public methods,
parameters and docstrings:

- ``async def f(…) -> T`` becomes ``def f(…) -> T``, an async iterator an iterator, ``async with`` ``with``;
- a face that a method returns, alone or in a list, tuple, dict or optional, becomes its twin;
- a twin that a method takes is replaced by what it stands for, and iterables are read by the caller's thread;
- public attributes become properties, and an attribute that is a `Queue` keeps its twin alive;
- bases that are no faces themselves are merged into the twin;
- type aliases and protocols of these modules that name a face are made again with the twins.

To add a part of the queue: write a class that takes the queue, return it from a property of ``Queue`` (or
assign ``self.jobs = Jobs(self)``), add ``Face("oxcart.jobs", "Jobs")`` to `FACES` and run ``make sync``. A
public attribute needs a type that can be read: an annotation, a parameter that it is assigned, or the call of
a class. What must stay with one event loop is private, or named in ``without``.
"""
