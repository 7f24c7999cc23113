local stored = read('epoch', 'deleted')
if absent(stored[1], stored[2]) then return {'NOT_FOUND'} end
return answer('OK', now_ms())
