"""The certificate of the signature is not valid today.

## What it checks
The signer's certificate, and those in the signature that lead to its root, are valid on this day.

## Why it matters
A key is trusted for as long as its certificate is valid. Nothing in such a signature shows when it was made, so whoever found the
key after that time could have made it. The command `model_signing verify` does not look at this: it takes the day on which the
certificate began for the day of the signature.

## How to fix
Sign again with a certificate that is valid, or verify with `--allow-expired` if you know that the signature is older than the
certificate's end.

## When it can be wrong
The clock of this machine is wrong. A keyless signature is never reported: its certificate lives for minutes, and a log shows
when it was used.

## Seen in
sigstore/model-transparency: `sign_certificate.py` sets the time of the check to the beginning of the certificate
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck


@rule(
    "SIG002",
    "expired-certificate",
    severity="error",
    on="signature",
    when=lambda signature: not signature.allow_expired,
)
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_signer()
    if signature.check.expired:
        yield Problem(
            f"{signature.check.expired}, and nothing shows that the signature was made while it was valid",
            file=signature.signature.name,
            hint="sign again with a valid certificate, or add --allow-expired if you know that the signature is older",
        )
