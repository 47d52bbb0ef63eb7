"""Live: the router in front of real engines.

What lies here needs the packages of the extra ``live``
(``pip install 'smetric-model[live]'``); nothing of it loads with ``import smetric_model``.
"""
