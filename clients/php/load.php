<?php
// Loads every generated file, which compiles it. A warning is an error. The HTTP library is not needed before a request.
$lib = $argv[1];
set_error_handler(function ($level, $message, $file, $line) {
    throw new ErrorException($message, 0, $level, $file, $line);
});
spl_autoload_register(function ($class) use ($lib) {
    $file = $lib . '/' . str_replace(['OpenAPI\\Client\\', '\\'], ['', '/'], $class) . '.php';
    if (is_file($file)) {
        require_once $file;
    }
});
$files = new RecursiveIteratorIterator(new RecursiveDirectoryIterator($lib, FilesystemIterator::SKIP_DOTS));
foreach ($files as $file) {
    require_once $file->getPathname();
}
