"""The site with one address more: a job as Django REST framework serves it by itself."""
