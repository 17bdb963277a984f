/**
 * The packages that the service ships, from the `packages` of package-lock.json: also those for other platforms. A
 * package can be installed at several places.
 */
export const productionPackages = (packages) => Object.entries(packages)
  .filter(([path, { dev }]) => path !== '' && !dev)
  .map(([path, { version, license }]) =>
    ({ path, name: path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length), version, license }))
