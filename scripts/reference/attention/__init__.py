"""Cases of attention, each computed twice: by loops over the formulas in numpy, and in torch for the gradients."""
