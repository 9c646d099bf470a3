"""From logits to a decision."""
