"""The stock demo: daily prices, the worst drawdown of each stock and period, and a page that shows it."""
