"""JSON Schema: a mask that every valid text passes, and a check of what the mask leaves out."""
