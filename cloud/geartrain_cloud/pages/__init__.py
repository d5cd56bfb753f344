"""Pages: a small web server over tables, for whatever page an example brings along."""

from geartrain_cloud.pages.server import Page, make_app, serve

__all__ = ["Page", "make_app", "serve"]
