"""DrQ: soft actor-critic from images, which are shifted at random."""
