//! A gateway that is stopped: not ready first, then gone within its grace period.

use std::time::Duration;

use reqwest::Client;
use tokio::time::Instant;

use crate::support::{PATIENCE, client, client_builder, gateway::Gateway, poll, within};

async fn status(client: &Client, url: &str) -> Option<u16> {
    Some(client.get(url).send().await.ok()?.status().as_u16())
}

#[tokio::test]
async fn a_stopped_gateway_turns_balancers_away_before_it_refuses_anybody() {
    let gateway = Gateway::with_flags(&["--lame-duck-ms=1500", "--shutdown-grace-ms=5000"]).await;
    let base = format!("http://{}", gateway.app.inference_address());
    let ready = format!("{base}/v2/health/ready");
    let client = client_builder().pool_max_idle_per_host(0).build().unwrap();
    let wait_for = async |wanted: Option<u16>| {
        poll("the status of ready", async || {
            let found = status(&client, &ready).await;
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    };
    wait_for(Some(200)).await;
    let begin = Instant::now();
    let stopping = tokio::spawn(gateway.app.shutdown());
    wait_for(Some(503)).await;
    for path in ["/v2", "/v2/health/live"] {
        assert_eq!(status(&client, &format!("{base}{path}")).await, Some(200));
    }
    wait_for(None).await;
    assert!(begin.elapsed() >= Duration::from_millis(1500));
    within("the end", stopping).await.unwrap();
}

#[tokio::test]
async fn a_request_that_does_not_end_holds_a_stopped_gateway_for_one_grace_period() {
    use tokio::{io::AsyncWriteExt as _, net::TcpStream};

    let gateway = Gateway::with_flags(&["--shutdown-grace-ms=1000"]).await;
    let mut slow = TcpStream::connect(gateway.app.inference_address())
        .await
        .unwrap();
    let head =
        b"POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{";
    slow.write_all(head).await.unwrap();
    let health = format!("http://{}/v2/health/live", gateway.app.inference_address());
    assert_eq!(status(&client(), &health).await, Some(200));
    let begin = Instant::now();
    within("the end", gateway.app.shutdown()).await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    assert!(took < PATIENCE.min(Duration::from_millis(2900)), "{took:?}");
}
