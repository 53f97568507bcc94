// The image's entrypoint runs this once, on a server without logins that only the loopback reaches.
db.getSiblingDB('admin').createUser({
  user: process.env.ACCOUNT_USER,
  pwd: process.env.ACCOUNT_PASSWORD,
  roles: ['root'],
});
