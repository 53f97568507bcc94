//! Testcontainers for Rust as its users write it, played by `bench compare`.
//!
//! Reads orders and writes answers, a line of JSON each. `{"start": "at once"}`, or "in turn", starts three services and is
//! answered with a URL for each. `{"stop": true}` removes them. The arguments are the images of Postgres, Redis and Mongo,
//! and a label for their containers.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testcontainers_modules::mongo::Mongo;
use testcontainers_modules::postgres::Postgres;
use testcontainers_modules::redis::Redis;
use testcontainers_modules::testcontainers::core::WaitFor;
use testcontainers_modules::testcontainers::runners::AsyncRunner as _;
use testcontainers_modules::testcontainers::{ContainerAsync, ContainerRequest, Image, ImageExt};
use tokio::io::{AsyncBufReadExt as _, BufReader};

const PASSWORD: &str = "of-the-comparison";

struct Containers {
    postgres: ContainerAsync<Postgres>,
    redis: ContainerAsync<Redis>,
    mongo: ContainerAsync<Mongo>,
}

impl Containers {
    async fn start(images: &[String], label: &str, at_once: bool) -> Result<Self> {
        let postgres = labelled(Postgres::default().with_password(PASSWORD), &images[0], label)?;
        let redis =
            labelled(Redis::default(), &images[1], label)?.with_cmd(["redis-server", "--requirepass", PASSWORD]);
        // The module waits for what MongoDB says when it listens. With an account the first server that says so is the one
        // that makes it, which the image says the end of; so whoever wants an account waits for this.
        let ready = WaitFor::message_on_stdout("MongoDB init process complete");
        let mongo = labelled(Mongo::new(), &images[2], label)?
            .with_env_var("MONGO_INITDB_ROOT_USERNAME", "user")
            .with_env_var("MONGO_INITDB_ROOT_PASSWORD", PASSWORD)
            .with_ready_conditions(vec![ready]);
        let (postgres, redis, mongo) = if at_once {
            tokio::try_join!(postgres.start(), redis.start(), mongo.start())?
        } else {
            (postgres.start().await?, redis.start().await?, mongo.start().await?)
        };
        Ok(Self { postgres, redis, mongo })
    }

    async fn urls(&self) -> Result<Value> {
        let postgres = address(&self.postgres, 5432).await?;
        let redis = address(&self.redis, 6379).await?;
        let mongo = address(&self.mongo, 27017).await?;
        Ok(json!({
            "postgres": format!("postgresql://postgres:{PASSWORD}@{postgres}/postgres"),
            "redis": format!("redis://:{PASSWORD}@{redis}/"),
            "mongo": format!("mongodb://user:{PASSWORD}@{mongo}/?authSource=admin"),
        }))
    }

    async fn stop(self) -> Result<()> {
        tokio::try_join!(self.postgres.rm(), self.redis.rm(), self.mongo.rm())?;
        Ok(())
    }
}

fn labelled<I: Image>(image: impl ImageExt<I>, name: &str, label: &str) -> Result<ContainerRequest<I>> {
    let (name, tag) = name.rsplit_once(':').context("an image has a tag")?;
    let (key, value) = label.split_once('=').context("a label has a value")?;
    Ok(image.with_name(name).with_tag(tag).with_label(key, value))
}

async fn address<I: Image>(container: &ContainerAsync<I>, port: u16) -> Result<String> {
    Ok(format!("{}:{}", container.get_host().await?, container.get_host_port_ipv4(port).await?))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [images @ .., label] = args.as_slice() else { bail!("which images, and which label?") };
    anyhow::ensure!(images.len() == 3, "images of Postgres, Redis and Mongo");
    let mut running = None;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let order: Value = serde_json::from_str(&line)?;
        let answer = if let Some(how) = order["start"].as_str() {
            let containers = Containers::start(images, label, how == "at once").await?;
            running.insert(containers).urls().await?
        } else {
            running.take().context("they run")?.stop().await?;
            json!({})
        };
        println!("{answer}");
    }
    Ok(())
}
