// An S3 server on a free port of this machine, which it prints:
//   node s3_server.js DIRECTORY BUCKET
// Its only account is S3RVER, with the secret S3RVER.

const S3rver = require('@20minutes/s3rver');

const [directory, bucket] = process.argv.slice(2);
new S3rver({
  address: '127.0.0.1',
  port: 0,
  directory,
  silent: true,
  configureBuckets: [{ name: bucket, configs: [] }],
})
  .run()
  .then((address) => console.log(`port ${address.port}`));
