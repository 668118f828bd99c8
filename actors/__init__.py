"""Touch the world: a plain, tested object in x.py, its thin Ray shell in x_actor.py."""
