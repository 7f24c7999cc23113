local stored = read('epoch', 'deleted')
if absent(stored[1], stored[2]) then return not_found(stored[2]) end
return answer('OK', now_ms())
