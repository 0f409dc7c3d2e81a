from tests.support.store_urls import fresh_url as fresh_url
