from tests.support.stores import fresh_url as fresh_url
