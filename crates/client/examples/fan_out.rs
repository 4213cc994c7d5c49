//! Fan-out at run time: a running task adds tasks to its own flow, and its dependents wait for them
//! too.

use taskyard::{Embedded, Fail, Flow, NewTask, TaskContext};

/// Counts the pages, and adds a task for each.
async fn list_pages(site: String, context: TaskContext) -> Result<usize, Fail> {
    let pages = site.len();
    let fetch = |page| (format!("page-{page}"), NewTask::new("fetch_page", &page));
    context.add_tasks((1..=pages).map(fetch)).await?;
    println!("{site} has {pages} pages");
    Ok(pages)
}

async fn fetch_page(page: usize) -> Result<(), Fail> {
    println!("page {page}");
    Ok(())
}

async fn index_site(context: TaskContext) -> Result<String, Fail> {
    let pages: usize = context.parent_result("list").await?;
    Ok(format!("indexed {pages} pages"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker
        .worker()
        .concurrency(2)
        .handler("list_pages", list_pages)
        .handler("fetch_page", fetch_page)
        .handler("index_site", index_site)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let flow = Flow::new("crawl");
    let list = flow.add("list", NewTask::new("list_pages", &"example"));
    let index = flow.add("index", NewTask::new("index_site", &())).after(&list);
    let results = broker.client().submit(flow).await?.result().await?;
    println!("{}", results.of(&index)?);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
