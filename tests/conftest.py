"""What all tests share: the Hypothesis profiles.

ci       the same examples every time, so that a run is a fact and not a sample (default)
search   new random examples, many of them: HYPOTHESIS_PROFILE=search make test-fast
mutants  as ci, but a failure is not shrunk: that a test fails is all `make mutants` wants to know
"""

import os

from hypothesis import Phase, settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.register_profile(
    "mutants",
    settings.get_profile("ci"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
