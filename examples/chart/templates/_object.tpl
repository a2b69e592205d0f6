{{- /* An object of the files with what the values change. */}}
{{- define "ferrule.object" }}
{{- $object := .object }}
{{- $values := .root.Values }}
{{- $name := $object.metadata.name }}
{{- if and (eq $object.kind "ConfigMap") (eq $name "ferrule-node") }}
{{- include "ferrule.config" (dict "object" $object "values" $values) }}
{{- else if and (eq $object.kind "ConfigMap") (eq $name "ferrule-nic-dra") }}
{{- with $values.nics.selectors }}{{ $_ := set $object "data" (dict "nic.yaml" (toYaml (dict "dra" (dict "selectors" .)))) }}{{ end }}
{{- else if eq $object.kind "DaemonSet" }}
{{- include "ferrule.pods" (dict "object" $object "root" .root) }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{- define "ferrule.config" }}
{{- $data := .object.data }}
{{- range $key, $value := .values.config }}
{{- if not (hasKey $data $key) }}{{ fail (printf "config.%s: ferrule-node has no such setting" $key) }}{{ end }}
{{- $_ := set $data $key $value }}
{{- end }}
{{- end }}

{{- define "ferrule.pods" }}
{{- $template := .object.spec.template }}
{{- $values := .root.Values }}
{{- $pod := $template.spec }}
{{- with $values.imagePullSecrets }}
{{- $secrets := list }}
{{- range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- if eq .object.metadata.name "ferrule-node" }}
{{- $node := first $pod.containers }}
{{- if ne $node.name "node" }}{{ fail "the first container is not node" }}{{ end }}
{{- if $values.network }}
{{- /* A change of the ConfigMap alone restarts nothing. */}}
{{- $_ := set $template.metadata "annotations" (dict "ferrule.dev/config" ($values.config | toJson | sha256sum)) }}
{{- $args := $node.args }}
{{- with $values.apiServer }}{{ $args = append $args (printf "--api-server=%s" .) }}{{ end }}
{{- if $values.nics.enabled }}
{{- $args = append $args "--template=/etc/ferrule/template.conflist" }}
{{- $mount := dict "name" "template" "mountPath" "/etc/ferrule" "readOnly" true }}
{{- $_ := set $node "volumeMounts" (append $node.volumeMounts $mount) }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "template" "configMap" (dict "name" "ferrule-node-template"))) }}
{{- end }}
{{- $_ := set $node "args" (concat $args $values.args) }}
{{- else }}
{{- $_ := set $pod "containers" (rest $pod.containers) }}
{{- $_ := unset $pod "serviceAccountName" }}
{{- $kept := list }}
{{- range $pod.volumes }}
{{- if has .name (list "bin" "root") }}{{ $kept = append $kept . }}{{ end }}
{{- end }}
{{- $_ := set $pod "volumes" $kept }}
{{- end }}
{{- end }}
{{- end }}
