"""Small models in the forms that devices run."""
