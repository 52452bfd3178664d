"""Pictures as SVG for the dashboard and the pipeline's report: charts, timelines and graphs of jobs."""
