from tests.support.fresh import fresh_url as fresh_url
