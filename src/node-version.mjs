// Ends the process on a Node.js that is too old. Each entry imports this file before anything else. It is JavaScript,
// because the scripts import it before the build. It and the files that import it statically may only use what an old
// Node.js has: an import that does not exist there fails before the first line runs.
const [major, minor] = process.versions.node.split('.').map(Number)

const needed = major < 20 || (major === 20 && minor < 19)
  ? '20.19'
  // `crc32` of node:zlib is missing in 21 and in 22 before 22.2.
  : major === 21 || (major === 22 && minor < 2) ? '22.2' : undefined
if (needed !== undefined) {
  console.error(`Node.js ${needed} or newer is needed; this is ${process.versions.node}`)
  process.exit(1)
}
