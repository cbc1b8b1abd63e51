"""The signature is not that of the trusted signer, or there is none.

## What it checks
- The model has a signature: a Sigstore bundle as OpenSSF model signing writes it.
- The signature was made with the key, the certificate or the identity that `--public-key`, `--certificate-chain` or `--signer`
  names, over what the bundle states. The package model-signing decides that.

Until this is so, nothing that the bundle states is believed, and all other rules on the signature are skipped.

## Why it matters
Whoever can exchange weights can also exchange a list of their digests. Only a signature says who vouches for them.

## How to fix
Fetch weights and signature again from whoever released them, and take the key from another place than the weights. If you
released them yourself: `ckptcheck sign`.

## When it can be wrong
The signer changed the key and told you elsewhere: verify with the new key.

## Seen in
sigstore/model-transparency: `Key mismatch` and `InvalidSignature` of model_signing verify
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck


@rule("SIG001", "unverified-signature", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    if signature.check.refusal:
        yield Problem(
            f"nobody vouches for these weights: {signature.check.refusal}",
            file=signature.signature.name,
            hint="fetch weights, signature and key again from whoever released them; ckptcheck sign signs weights of your own",
        )
