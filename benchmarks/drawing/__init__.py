"""Models that draw, codes and continuous tokens (`canvas_*`): speed, and whether pictures hold what captions say."""
