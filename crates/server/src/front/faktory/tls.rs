//! TLS for Faktory's clients: a certificate and its key from PEM files, TLS 1.2 and 1.3.

use crate::config::FaktoryTls;
use std::{fmt, io, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server::TlsStream,
};

/// Encrypts connections.
#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the files, or says what is wrong with which of them.
    pub(crate) fn load(files: &FaktoryTls) -> Result<Tls, String> {
        let certificate = files.certificate.display();
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
            .and_then(Iterator::collect)
            .map_err(|error| format!("the certificate {certificate} can't be read: {error}"))?;
        if chain.is_empty() {
            return Err(format!(
                "the certificate {certificate} contains no certificate; give a PEM file"
            ));
        }
        let key = files.key.display();
        let private = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| format!("the key {key} can't be read: {error}"))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS can't be set up: {error}"))?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|error| format!("{certificate} and {key} don't fit together: {error}"))?;
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(socket).await
    }
}
