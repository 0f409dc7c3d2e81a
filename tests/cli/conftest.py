from tests.support.interface_fixtures import cli as cli
from tests.support.interface_fixtures import engine as engine
from tests.support.interface_fixtures import home_cli as home_cli
from tests.support.interface_fixtures import http_server as http_server
