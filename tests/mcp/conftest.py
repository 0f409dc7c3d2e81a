from tests.support.interface_fixtures import engine as engine
from tests.support.interface_fixtures import http_server as http_server
