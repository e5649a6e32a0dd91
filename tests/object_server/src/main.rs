//! Serves until its standard input ends. The first line of its output is its port.

use std::io::Read;

use coprep_object_server::ObjectServer;

fn main() -> std::io::Result<()> {
    let server = ObjectServer::start()?;
    println!("{}", server.port());
    // It ends with the process that has started it, however that ends.
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
