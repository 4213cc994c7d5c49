//! Compiles the contract with protox, so that no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "taskyard/v1/taskyard.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["."])?;
    tonic_prost_build::configure()
        .bytes(".taskyard.v1.NewTask.payload")
        .bytes(".taskyard.v1.ClaimedTask.payload")
        .bytes(".taskyard.v1.AckRequest.result")
        .bytes(".taskyard.v1.BackupChunk.data")
        .compile_fds(descriptors)?;
    Ok(())
}
