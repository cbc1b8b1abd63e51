"""The weights have no signature, or none by the key or signer that you trust.

## What it checks
- The model has a signature: a Sigstore bundle as OpenSSF model signing writes it.
- The signature was made with the key, the certificate or the identity that `--public-key`, `--certificate-chain` or `--signer`
  names, over what the bundle states. The package model-signing decides that. If it refuses, ckptcheck believes nothing that the
  bundle states, and skips all other rules on the signature.
- The signer's certificate, and those in the signature that lead to its root, are valid today.

## Why it matters
Whoever can exchange weights can also exchange a list of their digests. Only a signature says who vouches for them. A key counts
only while its certificate is valid: the signature does not show when it was made, so a thief of an old key could have made it.
The command `model_signing verify` takes the first day of the certificate for the day of the signature.

## How to fix
Fetch weights and signature again from whoever released them, and take the key from another place than the weights. If you
released them yourself: `ckptcheck sign`.

## When it can be wrong
- The signer announced a new key: verify with that one.
- You know that the signature is older than the certificate's end: `--allow-expired`. A keyless signature is never reported: its
  certificate lives for minutes, and a log shows when it was used.

## Seen in
sigstore/model-transparency: `Key mismatch` and `InvalidSignature` of model_signing verify; `sign_certificate.py` sets the time of
the check to the beginning of the certificate
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck

FETCH = "fetch weights, signature and key again from whoever released them; ckptcheck sign signs weights of your own"
RENEW = "sign again with a valid certificate, or add --allow-expired if you know that the signature is older"


@rule("SIG001", "unverified-signature", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    file = signature.signature.name
    if signature.refusal:
        yield Problem(f"no trusted signature: {signature.refusal}", file=file, hint=FETCH)
        return
    if signature.expired:
        why = f"{signature.expired}, and nothing shows that the signature was made while it was valid"
        yield Problem(why, file=file, hint=RENEW)
