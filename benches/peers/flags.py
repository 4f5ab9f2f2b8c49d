"""Values of flags that the programs share."""

import argparse


def names(allowed):
    """Parses names by commas, each of them allowed."""

    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"has {name}, must be among {list(allowed)}")
        return chosen

    return parse
