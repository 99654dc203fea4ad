"""Language models as factors, alone and together."""
