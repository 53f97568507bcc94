const { ACCOUNT_USER: user, ACCOUNT_PASSWORD: password, ADDRESS: address, PORT: port } = process.env;
const host = address.includes(':') ? `[${address}]` : address;
const uri = `mongodb://${user}:${password}@${host}:${port}/?authSource=admin&serverSelectionTimeoutMS=5000`;
// A command that nobody may run without a login: a ping needs none.
print(connect(uri).adminCommand({ listDatabases: 1, nameOnly: true }).ok ? 'ready' : 'not ready');
