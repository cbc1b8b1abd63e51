"""The keys that sign a model and verify its signature: a key pair, certificates, or an identity (keyless)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.environment_files import require_plain_files
from ckptcheck.text.file_io import read_regular_file, real_path
from ckptcheck.text.formatting import format_bytes

SignerKind = Literal["key", "certificate", "keyless"]
EXTRA_HINT = "pip install model-signing pyopenssl"
PASSWORD_VARIABLE = "CKPTCHECK_KEY_PASSWORD"
"""Environment variable with the password of a private key. An option would show in the list of processes."""
LARGEST = 1 << 20
"""Bytes that are read of a key, a chain or a trust configuration."""
TOKEN_VARIABLE = "CKPTCHECK_IDENTITY_TOKEN"
"""Environment variable with an OpenID Connect token for a keyless signature."""


def require_packages() -> None:
    """Import the packages that sign. Raises CkptcheckError if they are missing, or do not fit together."""
    try:
        import model_signing.signing
        import model_signing.verifying  # noqa: F401
    except ImportError as error:
        raise CkptcheckError(f"signatures need the package model-signing: {error}", EXTRA_HINT) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep prints and warnings of the packages away from stdout, which belongs to the report."""
    import warnings

    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class SigningKey(msgspec.Struct, frozen=True):
    """The signer. Exactly one of `private_key` and `keyless` is set."""

    private_key: Path | None = None
    """An elliptic-curve key (P-256, P-384, P-521) as PEM."""
    password: str | None = None
    signing_certificate: Path | None = None
    """The certificate of the private key as PEM; None to sign with the key alone."""
    certificate_chain: tuple[Path, ...] = ()
    """The certificates between the signer's and the root, as PEM."""
    keyless: bool = False
    """Sign with an identity: of the CI job, of `token`, or of whoever logs in by browser. Needs a network."""
    token: str | None = None
    trust_config: Path | None = None
    """A Sigstore instance of your own; None: the public one."""

    def configure(self, config: Any) -> None:
        """Set the signer in model_signing's signing configuration. Raises CkptcheckError."""
        named = [self.private_key, self.signing_certificate, *self.certificate_chain, self.trust_config]
        _require_readable(*named)
        if self.keyless:
            require_plain_files()
        try:
            if self.keyless:
                config.use_sigstore_signer(
                    use_ambient_credentials=self.token is None,
                    identity_token=self.token,
                    trust_config=self.trust_config,
                )
            elif self.signing_certificate is not None:
                config.use_certificate_signer(
                    private_key=self.private_key,
                    signing_certificate=self.signing_certificate,
                    # model_signing cannot read an empty chain, so the chain is the certificate itself, which adds
                    # nothing.
                    certificate_chain=self.certificate_chain or (self.signing_certificate,),
                )
            else:
                # cryptography takes bytes, and model_signing passes the password on as given
                password = self.password.encode() if self.password else None
                config.use_elliptic_key_signer(private_key=self.private_key, password=password)
        except Exception as error:
            if self.keyless:
                raise describe_sigstore_failure(error, "signed") from error
            hint = "an elliptic-curve key in PEM form: openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
            needs_password = f"its password belongs in the environment variable {PASSWORD_VARIABLE}"
            is_locked = "password" in str(error).lower() or "encrypted" in str(error).lower()
            raise CkptcheckError(
                f"{self.private_key} cannot sign: {error}", needs_password if is_locked else hint
            ) from error


class TrustedSigner(msgspec.Struct, frozen=True):
    """The trusted signer. Exactly one of `public_key`, `certificate_chain` and `identity` is set."""

    public_key: Path | None = None
    certificate_chain: tuple[Path, ...] = ()
    """Root certificates, and the intermediate ones that lead to the signer's."""
    identity: str | None = None
    """The identity of a keyless signer: an e-mail address, or the URL of a workflow."""
    oidc_issuer: str | None = None
    """The issuer of the identity, such as ``https://accounts.google.com``."""
    trust_config: Path | None = None
    allow_expired: bool = False
    """Accept a certificate that expired after the signature."""

    @property
    def kind(self) -> SignerKind:
        """The kind of signature that this key verifies."""
        return "key" if self.public_key is not None else "certificate" if self.certificate_chain else "keyless"

    def configure(self, config: Any) -> None:
        """Set the trusted signer in model_signing's verifying configuration. Raises CkptcheckError."""
        _require_readable(self.public_key, *self.certificate_chain, self.trust_config)
        if self.kind == "keyless":
            require_plain_files()
        try:
            if self.public_key is not None:
                config.use_elliptic_key_verifier(public_key=self.public_key)
            elif self.certificate_chain:
                config.use_certificate_verifier(certificate_chain=self.certificate_chain)
            else:
                config.use_sigstore_verifier(
                    identity=self.identity, oidc_issuer=self.oidc_issuer, trust_config=self.trust_config
                )
        except Exception as error:
            if self.kind == "keyless":
                raise describe_sigstore_failure(error, "verified") from error
            name = self.public_key or self.certificate_chain[0]
            what = "an elliptic-curve public key" if self.public_key is not None else "certificates"
            raise CkptcheckError(f"{name} cannot verify: {error}", f"name {what} in PEM form") from error


def _require_readable(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            try:
                if len(read_regular_file(real_path(path), LARGEST + 1, is_text=False)) > LARGEST:
                    raise CkptcheckError(
                        f"{path} has more than {format_bytes(LARGEST)}, and no key or certificate has that"
                    )
            except OSError as error:
                raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error


def describe_sigstore_failure(error: Exception, done: Literal["signed", "verified"]) -> CkptcheckError:
    """Return the error for a failure of Sigstore: whether it was unreachable, and what works without a network."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    # sigstore's own error for metadata that it cannot fetch; requests' errors are OSErrors
    if any(isinstance(each, OSError) or type(each).__name__ == "TUFError" for each in causes):
        option = "--private-key" if done == "signed" else "--public-key"
        return CkptcheckError(
            f"Sigstore cannot be reached from this machine, so nothing is {done} without a key: {error}",
            f"run it where there is a network; {option} works without one, and --trust-config names an instance of your own",
        )
    return CkptcheckError(
        f"Sigstore refuses, so nothing is {done}: {type(error).__name__}: {error}",
        "look at the token or the job whose identity signs, and at --trust-config where it was given",
    )
