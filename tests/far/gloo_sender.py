"""The far side of a trainer that broadcasts what lies in files."""

from __future__ import annotations

from typing import Any

from ckptcheck_far import gloo, plane


def send(group: dict[str, Any], parcels: list[dict[str, Any]]) -> None:
    with gloo.joined(group, 0) as made:
        for parcel in parcels:
            found = plane.get(parcel["address"])
            for name in parcel["names"]:
                gloo.broadcast(made, found[name])


VERBS = {"send": send}
